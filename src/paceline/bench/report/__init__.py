"""A run for people: Markdown, and one page with pictures, and a page of coloured texts for each prompt.

Sections (`speed`, `rounds`, `costs`, `texts`, `provenance`) say what there is, in blocks; `page` and `markdown` show
them; `charts` draws plain numbers.
"""
