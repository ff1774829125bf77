"""The files of arrays: facts about them, read once, and open handles."""
