"""One transformer for every attention, at home in Hugging Face transformers."""
