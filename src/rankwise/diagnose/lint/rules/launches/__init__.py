"""How ranks are started."""
