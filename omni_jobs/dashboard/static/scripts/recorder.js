// Records a sound into the form's field for sounds, with its waveform as it comes, and plays what was recorded.

const part = (name) => document.getElementById(name);
const box = part("recorder");
const NAMES = { "audio/webm": "webm", "audio/ogg": "ogg", "audio/mp4": "m4a", "audio/wav": "wav", "audio/mpeg": "mp3" };
const HEIGHT = 72;  // as sound.js draws, because the page's policy knows the style for this height

let plugin = null;
let wave = null;
let recorded = null;  // the file, as long as it is attached
let sound = null;  // what plays
let sendsAtEnd = false;

function make() {
  const style = getComputedStyle(document.documentElement);
  plugin = window.WaveSurfer.Record.create({ renderRecordedAudio: false, scrollingWaveform: true });
  wave = window.WaveSurfer.create({
    container: part("record-wave"),
    height: HEIGHT,
    interact: false,
    normalize: true,
    waveColor: style.getPropertyValue("--wave-played").trim(),
    plugins: [plugin],
  });
  plugin.on("record-progress", (ms) => { part("record-time").textContent = `${(ms / 1000).toFixed(1)} s`; });
  plugin.on("record-end", attach);
}

function shows(isRecording) {
  part("record").textContent = isRecording ? "Stop" : recorded ? "Record anew" : "Record";
  part("record-send").hidden = !isRecording;
  part("record-time").hidden = !isRecording && !recorded;
  part("record-play").hidden = isRecording || !recorded;
  part("record-wave").hidden = !isRecording && !recorded;
}

function tell(text) {
  part("record-time").hidden = false;
  part("record-time").textContent = text;
}

async function toggle() {
  if (plugin?.isActive()) return plugin.stopRecording();
  if (!plugin) make();
  shows(true);  // first, because a waveform is as wide as its place
  tell("0.0 s");
  try {
    await plugin.startRecording();
  } catch (error) {
    shows(false);
    tell(error.message);
  }
}

async function attach(blob) {
  let heard = null;
  try { heard = await decode(blob); } catch { /* it was stopped before there was anything */ }
  if (!heard?.length) {
    sendsAtEnd = false;
    shows(false);
    return tell("Nothing was recorded.");
  }
  put(blob);
  if (sendsAtEnd) {
    sendsAtEnd = false;
    const { form } = part("audio");
    form.dataset.spoken = "";
    form.requestSubmit();
  }
  tell(`${heard.duration.toFixed(1)} s`);
  await wave.load("", [heard.getChannelData(0)], heard.duration);
}

function put(blob) {
  const type = blob.type.split(";")[0];
  const input = part("audio");
  const files = new DataTransfer();
  for (const file of input.files) if (file !== recorded) files.items.add(file);
  files.items.add(new File([blob], `recording.${NAMES[type] ?? "audio"}`, { type }));
  input.files = files.files;
  recorded = input.files[input.files.length - 1];
  input.dispatchEvent(new Event("change", { bubbles: true }));
}

async function decode(blob) {
  const context = new AudioContext();
  try {
    return await context.decodeAudioData(await blob.arrayBuffer());
  } finally {
    context.close();
  }
}

async function play() {
  if (sound) return sound.stop();
  part("record-play").disabled = true;
  const context = new AudioContext();
  const source = context.createBufferSource();
  source.buffer = await context.decodeAudioData(await recorded.arrayBuffer());
  source.connect(context.destination);
  source.addEventListener("ended", () => {
    sound = null;
    context.close();
    part("record-play").textContent = "Play it";
  });
  sound = source;
  part("record-play").disabled = false;
  part("record-play").textContent = "Stop it";
  source.start();
}

function begin() {
  if (!navigator.mediaDevices?.getUserMedia || !window.MediaRecorder) {
    part("no-recorder").hidden = false;
    return;
  }
  box.hidden = false;
  part("record").addEventListener("click", toggle);
  part("record-play").addEventListener("click", play);
  part("record-send").addEventListener("click", () => { sendsAtEnd = true; plugin.stopRecording(); });
  part("audio").addEventListener("change", (event) => {
    if (plugin?.isActive()) return;
    if (recorded && ![...event.target.files].includes(recorded)) recorded = null;
    shows(false);
  });
}

if (box) begin();
