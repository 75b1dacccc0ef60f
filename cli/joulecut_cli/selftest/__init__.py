"""`joulecut selftest`: whether what the code assumes of a card holds on this one."""
