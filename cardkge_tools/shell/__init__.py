"""What knows the machine, and no mathematics: the terminal, options, files, downloads, processes."""
