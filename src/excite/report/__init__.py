"""Results for people: tables, figures and the page."""
