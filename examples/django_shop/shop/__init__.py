"""A shop: an order is a row and two jobs, in one transaction."""
