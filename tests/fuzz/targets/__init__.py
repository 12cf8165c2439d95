"""One file for each kind of input; they are found."""
