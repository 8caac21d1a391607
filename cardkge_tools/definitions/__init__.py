"""What goes beyond the paper, in plain NumPy: settings, softmax, counts, and what is measured."""
