"""What stages look like: parts of a document, drawn as plain text, HTML, charts and graphs."""
