"""Every private torch name funcgrad touches, by subject, with the versions it was seen in (2.11, 2.13; 2.15 where
said).

Nothing else in the package may import a private torch name (a house test). What stands here is thin: a name, or a
function that gives a private name one clear meaning.
"""
