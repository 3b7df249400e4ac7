// The waveform of each sound on the page, above the browser's own player.

function waves(root) {
  const style = getComputedStyle(document.documentElement);
  for (const place of root.querySelectorAll("[data-sound]:not([data-drawn])")) {
    place.dataset.drawn = "";
    place.hidden = false;
    const wave = window.WaveSurfer.create({
      container: place,
      media: place.parentElement.querySelector("audio"),
      height: 72,
      normalize: true,
      barWidth: 2,
      barGap: 1,
      waveColor: style.getPropertyValue("--wave").trim(),
      progressColor: style.getPropertyValue("--wave-played").trim(),
    });
    wave.on("error", () => { place.hidden = true; });  // the player says what is wrong
  }
}

addEventListener("DOMContentLoaded", () => waves(document));
if (document.readyState === "complete") waves(document);
document.addEventListener("htmx:after:swap", () => waves(document));
