"""What a run does, one stage per file; each leaves files behind and is not done again."""
