"""Where evidence comes from: files today, rate sources later. Each reads one thing and says what is wrong with it."""
