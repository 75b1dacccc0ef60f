"""The page and the JSON API: they show the board, and forward commands."""
