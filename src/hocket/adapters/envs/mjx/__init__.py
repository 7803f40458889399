"""Small manipulation tasks, thousands of rows at once, in MJX or in MuJoCo itself."""
