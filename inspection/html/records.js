"use strict";
// Show the records that fit the fields above them. Without this script all records are shown.
for (const form of document.querySelectorAll("form.filter[hidden]")) {
  const cards = [...form.closest("section").querySelectorAll(".record")];
  const names = cards.map((card) => card.querySelector(".file").textContent.toLowerCase());
  const selects = [...form.querySelectorAll("select")];
  const update = () => {
    const text = form.elements.text.value.trim().toLowerCase();
    let shown = 0;
    cards.forEach((card, at) => {
      const fits = names[at].includes(text) && selects.every((select) =>
        !select.value || card.dataset[select.name].split(" ").includes(select.value));
      card.hidden = !fits;
      shown += fits;
    });
    form.querySelector("output").value = `${shown} of ${cards.length} shown`;
  };
  form.addEventListener("input", update);
  form.addEventListener("reset", () => setTimeout(update));
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  update();
}
// Show the slice that a slider chooses.
for (const slider of document.querySelectorAll("input.slices")) {
  const sheet = slider.parentElement.previousElementSibling;
  const depths = slider.dataset.depths.split(" ");
  const update = () => {
    const at = Number(slider.value);
    sheet.style.setProperty("--column", at % slider.dataset.columns);
    sheet.style.setProperty("--row", Math.floor(at / slider.dataset.columns));
    slider.setAttribute("aria-valuetext", `depth ${depths[at]}`);
    slider.nextElementSibling.textContent = `depth ${depths[at]}`;
  };
  slider.addEventListener("input", update);
  slider.hidden = false;
  update();
}
// Let the keyboard scroll what is wider than the page.
for (const wide of document.querySelectorAll(".table, pre")) {
  if (wide.scrollWidth > wide.clientWidth) wide.tabIndex = 0;
}
