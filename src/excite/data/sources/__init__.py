"""Where data sets come from: what is known of each, the places that may have it, and the decoded store."""
