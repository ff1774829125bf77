"""The cost of reading crops from a collection: predicted from metadata, and measured."""
