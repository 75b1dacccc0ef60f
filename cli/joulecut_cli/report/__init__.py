"""`joulecut report`: savings as they were measured, for operators, programs and managers."""
