"""A trained model applied to texts: from Python (:func:`cosformer.predict`), or to the rows of a file."""
