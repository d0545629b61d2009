"""The decode loop, who answers its questions, and how large its drafts are."""
