"""Reports of a run: Markdown, one page with charts, and a page of coloured texts for each prompt.

Sections (`speed`, `rounds`, `texts`, `provenance`) fill blocks; `forms` shows them by templates; `charts`
draws plain numbers.
"""
