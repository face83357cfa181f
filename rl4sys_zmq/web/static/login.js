// The token goes into a header, never into an address; the answer's cookie is not readable by scripts.
document.getElementById("login").addEventListener("submit", async event => {
  event.preventDefault();
  const token = document.getElementById("token").value.trim();
  const headers = /^[\x21-\x7e]+$/.test(token) ? {Authorization: `Bearer ${token}`} : {};
  const answer = await fetch("/login", {headers}).catch(() => null);
  if (answer?.ok) location.reload();
  else document.getElementById("alert").textContent = answer ? "This is not the token." : "The page's process does not answer.";
});
