"""`joulecut model`: time, memory and energy of a training run before it starts."""
