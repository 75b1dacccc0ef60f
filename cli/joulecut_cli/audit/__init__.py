"""`joulecut audit`: what a cluster wastes, before anything is installed that could change it."""
