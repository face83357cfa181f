"""The parameter ``like``: the parameters of other libraries, by their names, with their meaning and their defaults."""
