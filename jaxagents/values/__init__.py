"""Values: parameters and inputs to values of states and actions."""
