"""Trained softmax models made linear: learned feature maps taught by the model itself, then a little fine-tuning."""
