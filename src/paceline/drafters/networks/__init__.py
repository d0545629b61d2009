"""Networks that draft: what follows a text and what grows a draft is shared, a folder for each method."""
