"""Programs for those who work on headwise."""
