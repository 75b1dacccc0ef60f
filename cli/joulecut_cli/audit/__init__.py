"""`joulecut audit`: energy waste of a cluster, before anything is installed that changes it."""
