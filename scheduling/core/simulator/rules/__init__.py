"""Rule sets of the product's own simulations."""
