"use strict";
(() => {
  const table = document.getElementById("episodes-table");
  const find = document.getElementById("find");
  const count = document.getElementById("count");
  const chips = [...document.querySelectorAll("button[data-filter]")];
  const rows = table ? [...table.tBodies[0].rows] : [];
  const texts = rows.map((row) => row.cells[0].textContent.toLowerCase() + " " +
    row.cells[1].textContent);

  const apply = () => {
    const hidden = new Set(chips.filter((chip) => chip.getAttribute("aria-pressed") === "false")
      .map((chip) => chip.dataset.filter));
    const wanted = find.value.trim().toLowerCase();
    let shown = 0;
    rows.forEach((row, i) => {
      row.hidden = hidden.has(row.dataset.outcome) || !texts[i].includes(wanted);
      shown += row.hidden ? 0 : 1;
    });
    document.querySelectorAll(".card[data-outcome]").forEach((card) => {
      card.hidden = hidden.has(card.dataset.outcome);
    });
    count.textContent = shown.toLocaleString("en") + (shown === 1 ? " episode" : " episodes");
  };
  if (table) {
    chips.forEach((chip) => chip.addEventListener("click", () => {
      chip.setAttribute("aria-pressed", String(chip.getAttribute("aria-pressed") === "false"));
      apply();
    }));
    find.addEventListener("input", apply);
    // A cell of the grid leads to a row that a filter may hide.
    const reveal = () => {
      const row = document.getElementById(location.hash.slice(1));
      if (row && row.hidden) {
        find.value = "";
        chips.forEach((chip) => chip.setAttribute("aria-pressed", "true"));
        apply();
        row.scrollIntoView();
      }
    };
    addEventListener("hashchange", reveal);
  }

  // Players show their controls once they are played; without scripts they always do.
  document.querySelectorAll(".card video").forEach((video) => {
    const screen = video.parentNode;
    const start = (event) => {
      if (video.controls || (event.key && event.key !== "Enter" && event.key !== " ")) return;
      event.preventDefault();
      video.controls = true;
      screen.classList.remove("still");
      video.play();
    };
    video.controls = false;
    video.tabIndex = 0;
    screen.classList.add("still");
    video.addEventListener("click", start);
    video.addEventListener("keydown", start);
  });

  const theatre = document.getElementById("theatre");
  const close = () => { theatre.close(); theatre.replaceChildren(); };
  document.addEventListener("click", (event) => {
    const film = event.target.closest("a.film");
    if (film && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      const video = document.createElement("video");
      Object.assign(video, { src: film.href, controls: true, autoplay: true, muted: true });
      const words = document.createElement("p");
      words.textContent = film.dataset.caption;
      theatre.replaceChildren(video, words);
      theatre.showModal();
    } else if (event.target === theatre) {
      close();
    }
  });
  theatre.addEventListener("close", () => theatre.replaceChildren());
})();
