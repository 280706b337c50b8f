"""A registry module that does not import."""

crews = {"a": 1 / 0}
