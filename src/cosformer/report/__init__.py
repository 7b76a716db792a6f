"""Tables, figures and one page with everything that was measured and trained, made from files alone."""
