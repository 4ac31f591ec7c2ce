"""How fast redrive is, beside bare SQL and beside its peers. Run from the checkout, by make; no part of the package."""
