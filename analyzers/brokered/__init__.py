"""An analyzer that reaches its collectors over a broker: it needs no address of a host."""
