"""Numbers all crops of a catalogue, and reads them in the sequence of an order."""
