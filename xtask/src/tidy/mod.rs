//! Rules that no compiler checks. They are tests as well.

mod documents;
mod headers;
mod layers;
mod licences;

use std::path::Path;

/// Checks every rule; the error lists all that is wrong.
pub(crate) fn all(root: &Path) -> Result<(), String> {
    let metadata = crate::run::cargo_output(root, "metadata --format-version 1 --no-deps")?;
    let mut wrong = headers::wrong(root)?;
    wrong.extend(documents::wrong(root)?);
    wrong.extend(layers::wrong(&metadata)?);
    wrong.extend(licences::wrong(root)?);
    if wrong.is_empty() {
        return Ok(());
    }
    Err(wrong.join("\n"))
}

/// Reads a file of the repository.
pub(crate) fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    #[test]
    fn repository_is_tidy() {
        assert_eq!(super::all(&crate::root()), Ok(()));
    }
}
