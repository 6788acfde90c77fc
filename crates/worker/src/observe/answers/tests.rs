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
fn only_names_of_this_machine_are_answered() {
    for host in [
        "127.0.0.1:8890",
        "127.0.0.1",
        "localhost:1",
        "LOCALHOST",
        "[::1]:8890",
        "[::1]",
    ] {
        assert!(names_this_machine(&request(&[("Host", host)])), "{host}");
    }
    for host in [
        "",
        "attacker.example",
        "attacker.example:8890",
        "localhost.attacker.example",
        "127.0.0.1.attacker.example:8890",
        "192.0.2.1:8890",
        "0.0.0.0:8890",
        "[::]:8890",
    ] {
        assert!(!names_this_machine(&request(&[("Host", host)])), "{host}");
    }
    let two = [("Host", "127.0.0.1"), ("host", "attacker.example")];
    assert!(!names_this_machine(&request(&two)));
    assert!(names_this_machine(&request(&[])));
}

#[test]
fn what_a_page_sends_is_told_apart() {
    for header in [
        ("Origin", "null"),
        ("Origin", "http://127.0.0.1:8890"),
        ("Sec-Fetch-Site", "cross-site"),
        ("sec-fetch-site", "same-site"),
    ] {
        assert!(comes_from_a_page(&request(&[header])), "{header:?}");
    }
    // The address bar.
    assert!(!comes_from_a_page(&request(&[("Sec-Fetch-Site", "none")])));
    assert!(!comes_from_a_page(&request(&[("Host", "localhost")])));
}

#[test]
fn a_token_fits_whole_or_not_at_all() {
    let brings = |value: &str| has_token(&request(&[("authorization", value)]), "s3same");
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
    assert!(!has_token(&request(&[]), "s3same"));
}
