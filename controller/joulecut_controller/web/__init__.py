"""The page and the JSON API: they show the board, and hand on what a person commands."""
