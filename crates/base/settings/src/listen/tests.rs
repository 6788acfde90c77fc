use super::*;

#[test]
fn an_address_that_was_read_is_written_in_the_same_form() {
    for (text, shown, local) in [
        ("127.0.0.1:8890", "127.0.0.1:8890", true),
        ("127.9.9.9:0", "127.9.9.9:0", true),
        ("localhost:1", "127.0.0.1:1", true),
        ("LocalHost:1", "127.0.0.1:1", true),
        ("[::1]:8890", "[::1]:8890", true),
        ("[::ffff:127.0.0.1]:1", "[::ffff:127.0.0.1]:1", true),
        ("0.0.0.0:8890", "0.0.0.0:8890", false),
        ("[::]:8890", "[::]:8890", false),
        ("192.0.2.1:65535", "192.0.2.1:65535", false),
        ("unix:/run/a b.sock", "unix:/run/a b.sock", true),
    ] {
        let address: ListenAddress = text.parse().unwrap();
        assert_eq!(address.to_string(), shown);
        assert_eq!(address.to_string().parse(), Ok(address.clone()));
        assert_eq!(address.is_local(), local, "{text}");
    }
    let socket: ListenAddress = "unix:/run/x".parse().unwrap();
    assert_eq!(socket.unix_path(), Some(Path::new("/run/x")));
}

#[test]
fn auto_is_a_unix_socket_of_this_user() {
    let auto: Listen = "auto".parse().unwrap();
    assert_eq!((&auto, auto.to_string().as_str()), (&Listen::Auto, "auto"));
    assert!(auto.is_local() && auto.is_unix());
    let tcp: Listen = "0.0.0.0:8890".parse().unwrap();
    assert_eq!(tcp.to_string(), "0.0.0.0:8890");
    assert!(!tcp.is_local() && !tcp.is_unix());
    assert!("unix:/run/x".parse::<Listen>().unwrap().is_unix());
    assert_eq!("Auto".parse::<Listen>(), Err(ListenAddressError::NoPort));
    assert!(
        "auto".parse::<ListenAddress>().is_err(),
        "no client can connect to that"
    );
}

#[test]
fn for_a_text_that_is_not_an_address_the_error_says_why() {
    for (text, error) in [
        ("", ListenAddressError::NoPort),
        ("127.0.0.1", ListenAddressError::NoPort),
        ("true", ListenAddressError::Switch),
        ("Yes", ListenAddressError::Switch),
        ("1", ListenAddressError::Switch),
        ("8890", ListenAddressError::OnlyPort(8890)),
        (":8891", ListenAddressError::OnlyPort(8891)),
        ("88900", ListenAddressError::NoPort),
        ("127.0.0.1:", ListenAddressError::Port),
        ("127.0.0.1:+1", ListenAddressError::Port),
        ("127.0.0.1:65536", ListenAddressError::Port),
        ("127.0.0.1:8890 ", ListenAddressError::Port),
        ("::1:8890", ListenAddressError::Brackets),
        ("127.1:8890", ListenAddressError::Name),
        ("host.example:8890", ListenAddressError::Name),
        ("http://127.0.0.1:8890", ListenAddressError::Url),
        ("unix:", ListenAddressError::Path),
        ("unix:run/x", ListenAddressError::Path),
        ("unix:/run/", ListenAddressError::Path),
    ] {
        assert_eq!(text.parse::<ListenAddress>(), Err(error), "{text}");
    }
    let long = format!("unix:/{}", "x".repeat(LONGEST_PATH));
    assert_eq!(
        long.parse::<ListenAddress>(),
        Err(ListenAddressError::LongPath)
    );
}
