"""How MuJoCo renders without a screen."""
