use super::*;

fn request(headers: &[(&str, &str)]) -> Request {
    Request {
        method: "GET".to_owned(),
        target: "/".to_owned(),
        keep_alive: true,
        headers: headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec()))
            .collect(),
        body: Vec::new(),
    }
}

#[test]
fn only_the_whole_token_is_accepted() {
    let brings = |value: &str| request(&[("authorization", value)]).bears("s3same");
    assert!(brings("Bearer s3same"));
    assert!(brings("bearer s3same"));
    for wrong in [
        "",
        "Bearer",
        "Bearer ",
        "Bearer s3sam",
        "Bearer s3samE",
        "Bearer s3same ",
        "Bearer s3sames3same",
        "Basic s3same",
        "s3same",
    ] {
        assert!(!brings(wrong), "{wrong:?}");
    }
    assert!(!request(&[]).bears("s3same"));
}
