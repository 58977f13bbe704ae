"""What each page shows, as frozen values. `as_json` writes any of them."""
