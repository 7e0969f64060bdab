"""The gallery's pages: the stored results, and what they show about each library, as HTML and as Markdown."""
