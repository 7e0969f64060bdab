"""The gallery's pages: what is kept of its results, what they say of each library, as HTML and as Markdown."""
