"""The definitions beyond the paper, in plain NumPy: settings, softmax, counts and measures."""
