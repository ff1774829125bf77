"""Plans requests: the chunks that a request needs, their location, and the places that they fill."""
