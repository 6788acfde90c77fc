//! Another program writes into the model's file while a server has it mapped. What the server computes then is of no model that
//! another server loads.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

use contextpilot_testbed::{Arch, Builder, Model, Server, until};

use super::{Stored, folder, started, tokens};

fn one_slot(model: &Path) -> Builder {
    Server::builder()
        .model(&Model::file(model.to_owned(), Arch::Llama))
        .bare_slots(1)
        .args(["-c", "4096"])
}

/// Makes other weights of those in the file, where they are, and puts its time back.
fn change_weights(model: &Path) {
    let bytes = fs::read(model).unwrap();
    let written = fs::metadata(model).unwrap().modified().unwrap();
    let file = File::options().write(true).open(model).unwrap();
    let end = bytes.len() - bytes.len() / 2;
    // The lowest bits of the exponents: all weights are numbers.
    let other: Vec<u8> = bytes[end..].iter().map(|byte| byte ^ 0x10).collect();
    file.write_all_at(&other, end as u64).unwrap();
    file.set_modified(written).unwrap();
}

fn nothing_of_it_is_loaded(prepare: impl FnOnce(&Path, &Path), loaded: &Path, name: &Path) {
    let folder = folder();
    let (tea, sea) = (tokens(320, 600), tokens(321, 600));
    let mut stored = Stored::start(&one_slot(name), folder.path());
    stored.ask(&tea);
    prepare(loaded, name);
    for prompt in [&sea, &tea, &sea] {
        let (_, account) = stored.ask(prompt);
        assert_eq!(account.from.store, 0, "{account:?}");
    }
    let figures = stored.figures();
    let is_named = |why: &String| why.contains("written into the model's file");
    assert!(figures.refused.iter().any(is_named), "{figures:?}");
    stored.end();

    // The same model as it was.
    let builder = super::one_slot();
    let mut next = Stored::start(&builder, folder.path());
    let plain = started(&builder);
    for prompt in [&sea, &tea] {
        next.compare(&plain, prompt);
    }
}

fn copy_of_the_model(to: &Path) {
    fs::copy(Model::tiny(Arch::Llama).path(), to).unwrap();
}

#[test]
fn what_a_server_evaluates_with_overwritten_weights_is_not_stored_though_size_and_time_are_the_same()
 {
    let desk = folder();
    let model = desk.path().join("model.gguf");
    copy_of_the_model(&model);
    nothing_of_it_is_loaded(|loaded, _| change_weights(loaded), &model, &model);
}

#[test]
fn neither_if_the_path_leads_to_another_file_by_then() {
    let desk = folder();
    let [one, other, link] =
        ["one.gguf", "other.gguf", "model.gguf"].map(|name| desk.path().join(name));
    copy_of_the_model(&one);
    copy_of_the_model(&other);
    symlink(&one, &link).unwrap();
    let switch = |loaded: &Path, link: &Path| {
        fs::remove_file(link).unwrap();
        symlink(&other, link).unwrap();
        change_weights(loaded);
    };
    nothing_of_it_is_loaded(switch, &one, &link);
}

/// Its number of links changes. That looks as if size and time had been put back after a change, so it is read again.
#[test]
fn a_file_that_gets_another_name_goes_on_being_stored() {
    let (desk, folder) = (folder(), folder());
    let model = desk.path().join("model.gguf");
    copy_of_the_model(&model);
    let mut stored = Stored::start(&one_slot(&model), folder.path());
    let (tea, sea) = (tokens(322, 600), tokens(323, 600));
    stored.ask(&tea);
    stored.ask(&sea);
    fs::hard_link(&model, desk.path().join("second.gguf")).unwrap();
    until("the file is known again", || {
        stored.ask(&tea);
        stored.ask(&sea).1.from.store.eq(&599).then_some(())
    });
    assert_eq!(stored.figures().refused, [""; 0]);
}

/// It may get one between two batches of a prompt, or between two turns.
#[test]
fn what_a_slot_holds_when_the_file_gets_another_name_is_stored_with_what_follows() {
    for arch in [Arch::Llama, Arch::Mamba] {
        let (desk, folder) = (folder(), folder());
        let model = desk.path().join("model.gguf");
        fs::copy(Model::tiny(arch).path(), &model).unwrap();
        let builder = Server::builder()
            .model(&Model::file(model.clone(), arch))
            .bare_slots(1)
            .args(["-c", "4096"]);
        let mut stored = Stored::start(&builder, folder.path());
        let (tea, sea) = (tokens(324, 1200), tokens(325, 600));
        stored.ask(&tea[..600]);
        fs::hard_link(&model, desk.path().join("second.gguf")).unwrap();
        for length in [800, 1000, 1200] {
            stored.ask(&tea[..length]);
        }
        until("the file is known again", || {
            let (_, account) = stored.ask(&sea);
            assert_eq!(account.from.slot, 0, "{arch:?}: {account:?}");
            stored.ask(&tea).1.from.store.ge(&1190).then_some(())
        });
        assert_eq!(stored.figures().refused, [""; 0], "{arch:?}");
    }
}
